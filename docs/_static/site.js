// What the theme leaves out for keyboards and screen readers.

// What scrolls sideways can be scrolled by keys: which boxes do depends on the window's width.
const WIDE = "pre, .table-wrapper, .algorithm, div.math";
const reach = () => {
  for (const box of document.querySelectorAll(WIDE)) {
    const scrolls = box.scrollWidth > box.clientWidth && getComputedStyle(box).overflowX !== "visible";
    if (scrolls) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
};

// The theme's switches are icons in labels of hidden boxes: here they are buttons.
const asButton = (icon, box) => {
  const told = () => icon.setAttribute("aria-expanded", box.checked);
  const drawer = { __navigation: ".sidebar-drawer", __toc: ".toc-drawer" }[box.id];
  icon.tabIndex = 0;
  icon.setAttribute("role", "button");
  icon.setAttribute("aria-label", box.getAttribute("aria-label") || "Subpages");
  icon.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    box.click();
    if (drawer && box.checked) document.querySelector(`${drawer} a`).focus();
  });
  box.addEventListener("change", told);
  told();
};

window.addEventListener("load", () => {
  for (const caption of document.querySelectorAll("p.caption[role=heading]"))
    caption.setAttribute("aria-level", "2");
  for (const drawer of document.querySelectorAll("aside.sidebar-drawer, aside.toc-drawer"))
    drawer.setAttribute("aria-label", drawer.matches(".toc-drawer") ? "On this page" : "All pages");
  for (const link of document.querySelectorAll(".sphx-glr-thumbcontainer a"))
    link.setAttribute("aria-label", link.textContent);
  for (const label of document.querySelectorAll("label[for]:not(.overlay)")) {
    const box = document.getElementById(label.htmlFor);
    if (box && box.matches(".sidebar-toggle, .toctree-checkbox")) asButton(label.firstElementChild, box);
  }
  reach();
  window.addEventListener("resize", reach);
  if (window.MathJax && MathJax.startup) MathJax.startup.promise.then(reach);
});
window.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const box of document.querySelectorAll(".sidebar-toggle:checked")) box.click();
});
