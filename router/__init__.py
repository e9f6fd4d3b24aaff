"""Many workers as one: policies, registry, health, proxy. Nothing is built yet."""
