"""The Messages protocol: its requests, its stream events, its responses."""
