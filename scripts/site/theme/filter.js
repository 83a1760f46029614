// A field above long tables that hides the rows without its words. A page loads nothing from another host.
const tables = [...document.querySelectorAll('.md-content table')];
const rows = tables.flatMap(table => [...table.tBodies].flatMap(body => [...body.rows]));
if (rows.length > 100) {
  const field = Object.assign(document.createElement('input'), {type: 'search', className: 'pdx-filter', placeholder: 'Filter rows, for example: 503 push'});
  field.setAttribute('aria-label', field.placeholder);
  field.addEventListener('input', () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
  });
  const first = tables[0].closest('.md-typeset__scrollwrap') ?? tables[0];
  first.before(field);
}
