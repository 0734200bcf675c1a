"""Very many malformed inputs for everything that reads from outside: nothing ends, hangs or grows."""
