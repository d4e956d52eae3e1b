"""A partner that is no checkpoint of ours: a chat model behind an OpenAI-compatible endpoint."""
