"""The runtime: engine, scheduler, models, grammar, programs. Import the module you need."""
