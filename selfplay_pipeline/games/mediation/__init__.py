"""Mediation, a game of DialOp: an agent books a flight for each of two users, whom it hears in separate rooms."""
