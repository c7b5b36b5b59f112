// What the theme leaves out for keyboards and screen readers.
window.addEventListener("load", () => {
  for (const caption of document.querySelectorAll("p.caption[role=heading]"))
    caption.setAttribute("aria-level", "2");
  for (const box of document.querySelectorAll("pre, .table-wrapper, .algorithm"))
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  for (const drawer of document.querySelectorAll("aside.sidebar-drawer, aside.toc-drawer"))
    drawer.setAttribute("aria-label", drawer.matches(".toc-drawer") ? "On this page" : "All pages");
  for (const link of document.querySelectorAll(".sphx-glr-thumbcontainer a"))
    link.setAttribute("aria-label", link.textContent);
});
