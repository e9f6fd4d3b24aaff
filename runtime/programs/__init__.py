"""Programs as data (the IR) and the executor that runs them; never imports torch."""
