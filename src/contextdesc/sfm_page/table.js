
// The table of images: its rows are in the page already; here they become sortable.

const compareNames = new Intl.Collator("en", { numeric: true }).compare;

/** Make each header of a table sort its rows; the same header again turns the order around. */
function makeSortable(table) {
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => {
      const numbers = column > 0;
      const was = header.getAttribute("aria-sort");
      const descending = was ? was === "ascending" : numbers;
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => compareCells(a.cells[column], b.cells[column], numbers, descending));
      table.tBodies[0].append(...rows);
    });
  });
}

/** Order of two cells; cells without a number come last in both directions. */
function compareCells(a, b, numbers, descending) {
  const sign = descending ? -1 : 1;
  if (!numbers) return sign * compareNames(a.textContent, b.textContent);
  const [first, second] = [a.dataset.value, b.dataset.value];
  if (first === "" || second === "") return (first === "") - (second === "");
  return sign * (first - second);
}
