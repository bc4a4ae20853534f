// Mends what the theme adds after the page has loaded: tables that scroll can be reached with the keyboard, and
// buttons of code blocks and nested menus are no landmarks.
const mark = () => {
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((each) => (each.tabIndex = 0));
  document.querySelectorAll(".md-code__nav, .md-nav .md-nav").forEach((each) => each.setAttribute("role", "group"));
};
new MutationObserver(mark).observe(document.body, { childList: true, subtree: true });
mark();
