"""What is seen of a program from outside: the user's lines and variables, spans of time, and why something was done. See README.md."""
