"""Teachers: models and scripted experts that score what the student wrote, or act in its place."""
