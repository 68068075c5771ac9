"""The simulator: one request by formula, many by events, against the paper's figures and for other models and links."""
