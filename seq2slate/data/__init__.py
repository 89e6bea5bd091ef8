"""Lists, their readers and writers, features, batches, and slates."""
