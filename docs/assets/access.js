// Names and stops that the theme leaves out, for screen readers and keyboards.
document.querySelector("[data-md-component=search]")?.setAttribute("aria-label", "Search");
document.querySelector(".md-nav--primary")?.setAttribute("aria-label", "Pages");
addEventListener("load", () => {
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap")) wide.tabIndex = 0;
});
