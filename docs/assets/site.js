// Code and tables that scroll can be reached with the keyboard.
for (const each of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) each.tabIndex = 0;
