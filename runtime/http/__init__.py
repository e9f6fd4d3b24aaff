"""HTTP in front of the runtime: native and OpenAI routes, in the tokenizer process; no torch."""
