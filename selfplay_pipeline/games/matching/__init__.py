"""DialOp's reviewer matching: two players see parts of a table of scores and agree on a reviewer for each paper."""
