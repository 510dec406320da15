// The report: draws its curve and heat map, and leads from a finding to its place.
(async () => {
  const data = await page.unpack(document.getElementById("report-data").textContent);
  page.curves(data.curves); page.heat(data.heat);
  document.addEventListener("click", event => {
    const button = event.target.closest("[data-part]"), link = event.target.closest("[data-to]");
    if (button && page.toPart) page.toPart(button.dataset.part, button.dataset.ranks.split(" ").map(Number));
    if (link && link.dataset.to === "steps" && page.showStep && data.curves[0]?.slow.length) page.showStep(data.curves[0].slow[0]);
  });
  document.documentElement.dataset.ready = "yes";
})();
