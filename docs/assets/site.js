// Tables that scroll can be reached with the keyboard; the theme wraps them after the page has loaded.
const mark = () => document.querySelectorAll(".md-typeset__scrollwrap").forEach((each) => (each.tabIndex = 0));
new MutationObserver(mark).observe(document.body, { childList: true, subtree: true });
mark();
