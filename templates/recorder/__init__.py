"""The recorder: copied into the run folder, run inside the job; standard library, Python 3.9 and up."""
