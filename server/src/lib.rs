//! OpenAI-compatible HTTP server and the `tokenspeed` command.
