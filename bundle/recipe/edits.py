"""All edits of one function, each a function that returns an Edit or, where it does not apply, None."""

import random
from collections.abc import Callable

from body_edits import (
    add_docstring,
    double_quotes,
    insert_statement,
    reindent,
    remove_comments,
    remove_docstring,
    wrap_in_try,
)
from function import Edit, Function
from identifiers import Lexicon
from rename_edits import rename_attribute, rename_function, rename_variable
from signature_edits import add_decorator, add_parameter, add_types, change_default, make_async

# Renaming a variable is the commonest request, so it is drawn twice as often.
EDITS: list[Callable[[Function, random.Random, Lexicon], Edit | None]] = [
    rename_function,
    rename_variable,
    rename_variable,
    rename_attribute,
    add_docstring,
    remove_docstring,
    double_quotes,
    add_types,
    add_parameter,
    change_default,
    reindent,
    make_async,
    add_decorator,
    remove_comments,
    insert_statement,
    wrap_in_try,
]
