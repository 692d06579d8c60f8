"""What a job may reach: landlock, bubblewrap, another user, or none; the first that works here.

Standard library only below this package: the supervisor of a job applies it.
"""
