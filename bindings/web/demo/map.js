// Draws what stayed, from position 0 on the left to the last one on the right.

function begin(canvas) {
  const scale = devicePixelRatio;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  const style = getComputedStyle(canvas);
  return { context, scale, color: (name) => style.getPropertyValue(`--${name}`).trim() };
}

// A column of pixels is as dark as the share of its positions that stayed. Single tokens are
// to be seen, so a share counts as its power of 0.8.
export function drawStrip(canvas, positions, nTokens) {
  const { context, color } = begin(canvas);
  const { width, height } = canvas;
  if (width === 0) return;
  const kept = new Float32Array(width);
  const all = new Float32Array(width);
  // Each position covers a stretch of columns, the first and last ones in part.
  const spread = (into, position) => {
    const [from, to] = [(position * width) / nTokens, ((position + 1) * width) / nTokens];
    for (let x = Math.floor(from); x < to && x < width; ++x) {
      into[x] += Math.min(x + 1, to) - Math.max(x, from);
    }
  };
  for (let position = 0; position < nTokens; ++position) spread(all, position);
  for (const position of positions) spread(kept, position);
  context.fillStyle = color("track");
  context.fillRect(0, 0, width, height);
  context.fillStyle = color("kept");
  for (let x = 0; x < width; ++x) {
    if (kept[x] === 0) continue;
    context.globalAlpha = Math.min(1, kept[x] / all[x]) ** 0.8;
    context.fillRect(x, 0, 1, height);
  }
  context.globalAlpha = 1;
}

// A dot is filled if the model finds the fact, else a ring.
export function drawFacts(canvas, facts, nTokens) {
  const { context, scale, color } = begin(canvas);
  const { width, height } = canvas;
  const radius = Math.min(height / 2 - scale, Math.max(2 * scale, width / facts.length / 2 - scale),
                          5 * scale);
  context.lineWidth = 1.5 * scale;
  for (const { position, found } of facts) {
    const x = Math.min(Math.max((position * width) / nTokens, radius), width - radius);
    context.beginPath();
    context.arc(x, height / 2, radius - (found ? 0 : context.lineWidth / 2), 0, 2 * Math.PI);
    if (found) {
      context.fillStyle = color("found");
      context.fill();
    } else {
      context.strokeStyle = color("lost");
      context.stroke();
    }
  }
}
