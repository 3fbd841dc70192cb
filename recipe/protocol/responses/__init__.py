"""Responses: request schema, conversion, events and responses."""
