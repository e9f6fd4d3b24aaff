"""How the runtime's processes talk: one mailbox each, typed messages, one module a boundary."""
