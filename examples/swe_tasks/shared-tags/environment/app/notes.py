"""Notes with tags."""


class Note:
    def __init__(self, text, tags=[]):
        self.text = text
        self.tags = tags

    def add_tag(self, tag):
        tag = tag.strip().lower()
        if tag and tag not in self.tags:
            self.tags.append(tag)
        return self


def with_tag(notes, tag):
    """The notes that have a tag."""
    return [note for note in notes if tag.lower() in note.tags]
