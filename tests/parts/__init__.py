"""Real servers and scripted backends that the tests start. One part a file."""
