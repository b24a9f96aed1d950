"""Matrices as lists of rows."""


def shape(matrix):
    """Rows and columns."""
    return len(matrix), len(matrix[0])


def transpose(matrix):
    """Rows become columns."""
    rows, columns = shape(matrix)
    return [[matrix[column][row] for column in range(columns)] for row in range(rows)]


def multiply(left, right):
    """The product of two matrices. Raises ValueError if their shapes do not fit."""
    rows, inner = shape(left)
    other, columns = shape(right)
    if inner != other:
        raise ValueError(f"{rows}x{inner} and {other}x{columns} do not fit")
    return [
        [sum(left[row][k] * right[k][column] for k in range(inner)) for column in range(rows)]
        for row in range(rows)
    ]
