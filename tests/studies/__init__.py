"""Tests of the evidence that is made with the application; `make studies` runs them."""
