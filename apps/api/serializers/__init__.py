"""Parse, validate, render and describe each field of the API, declared once."""
