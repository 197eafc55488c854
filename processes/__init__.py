"""What a process of a run knows of signals, of the other processes and of its threads. Imported before torch."""
