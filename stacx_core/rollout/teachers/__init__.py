"""Teachers: models and scripted experts that score the student or act in its place."""
