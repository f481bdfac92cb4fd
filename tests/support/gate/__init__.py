"""Proofs from outside: programs that start real servers, and the gate that runs every proof."""
