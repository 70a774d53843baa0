"""What a model observes, and the sites that a student gives back."""
