// What is seen on a page and has no name that is read out, what leads nowhere, and text that can hardly be told from its
// ground (WCAG 2: a contrast of 4.5).
() => {
  const faults = [], seen = one => one.checkVisibility();
  for (const one of document.querySelectorAll("button, a, input, select, [role=log], [role=tablist], [role=group], svg"))
    if (seen(one) && !one.getAttribute("aria-label") && !one.textContent.trim()) faults.push("no name: " + one.outerHTML);

  for (const name of ["aria-controls", "aria-labelledby"])
    for (const one of document.querySelectorAll(`[${name}]`))
      if (!document.getElementById(one.getAttribute(name))) faults.push("leads nowhere: " + one.outerHTML);

  const parts = colour => colour.match(/[\d.]+/g).map(Number);
  const linear = value => value / 255 <= .04045 ? value / 255 / 12.92 : ((value / 255 + .055) / 1.055) ** 2.4;
  const light = colour => {
    const [red, green, blue] = parts(colour).map(linear);
    return .2126 * red + .7152 * green + .0722 * blue;
  };
  const ground = one => {
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if ((parts(colour)[3] ?? 1) === 1) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  for (const one of document.querySelectorAll("main *")) {
    const hasText = [...one.childNodes].some(part => part.nodeType === Node.TEXT_NODE && part.data.trim());
    if (!hasText || !seen(one) || one.disabled || one.closest("svg")) continue;
    const [low, high] = [light(getComputedStyle(one).color), light(ground(one))].sort((a, b) => a - b);
    const contrast = (high + .05) / (low + .05);
    if (contrast < 4.5) faults.push(`contrast ${contrast.toFixed(1)}: ${one.outerHTML.slice(0, 80)}`);
  }
  return faults;
}
