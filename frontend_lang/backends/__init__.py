"""What programs run on besides the in-process engine: a server over HTTP, or one's own."""
