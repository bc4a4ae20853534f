// Mends what the theme adds after the page has loaded: tables that scroll can be reached with the keyboard, and the
// button of a code block is no landmark.
const mark = () => {
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((each) => (each.tabIndex = 0));
  document.querySelectorAll(".md-code__nav").forEach((each) => each.setAttribute("role", "none"));
};
new MutationObserver(mark).observe(document.body, { childList: true, subtree: true });
mark();
