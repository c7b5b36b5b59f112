// Draws the charts and maps of a report from the JSON in #data, with Plotly.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const narrow = window.matchMedia("(max-width: 640px)");
  const axes = {
    rounds: ["Rounds", "communication round"],
    bytes: ["Bytes", "megabytes sent, up and down"],
    seconds: ["Seconds", "seconds in the rounds"],
    simulated: ["Simulated", "simulated seconds"],
  };
  const dashes = ["solid", "dash", "dot", "dashdot", "longdash"];
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d"] };

  // Plotly reads tags in texts: names are others' words.
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

  function element(kind, properties = {}, ...children) {
    const made = Object.assign(document.createElement(kind), properties);
    made.append(...children);
    return made;
  }

  function dropdown(words, names, change) {
    const made = element("select", { onchange: () => change(Number(made.value)) });
    names.forEach((name, i) => made.append(element("option", { value: i, textContent: name })));
    return element("label", {}, words, made);
  }

  function buttons(names, chosen, change) {
    const made = element("span", { className: "switch" });
    const press = (key) => {
      for (const button of made.children) button.setAttribute("aria-pressed", button.dataset.key === key);
    };
    for (const [key, name] of Object.entries(names)) {
      const button = element("button", { type: "button", textContent: name });
      button.dataset.key = key;
      button.onclick = () => { press(key); change(key); };
      made.append(button);
    }
    press(chosen);
    made.press = press;
    return made;
  }

  function layout(more) {
    const many = more.lines > 4;
    return {
      margin: { l: 64, r: 14, t: 34, b: 48 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: "#aab2bd", activecolor: "#0072b2" },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "inherit", size: 12, color: "#1c2430" },
      hovermode: "closest", hoverlabel: { namelength: -1, align: "left" },
      showlegend: more.lines > 1, uirevision: "kept",
      legend: narrow.matches || !many
        ? { orientation: "h", y: -0.16, yanchor: "top", x: 0 }
        : { x: 1.01, y: 1 },
    };
  }

  function rgba(colour, alpha) {
    const part = (i) => parseInt(colour.slice(i, i + 2), 16);
    return `rgba(${part(1)},${part(3)},${part(5)},${alpha})`;
  }

  function traces(column, x) {
    return column.lines.flatMap((line, i) => {
      const colour = data.colours[line.colour % data.colours.length];
      const name = plain(short(line.name, narrow.matches ? 28 : 48));
      const shared = { x: line.x[x], type: "scatter", mode: "lines", legendgroup: String(i) };
      const curve = {
        ...shared, y: line.y, name, customdata: line.x.rounds,
        line: { color: colour, width: 2, dash: dashes[Math.floor(line.colour / data.colours.length) % 5] },
        hovertemplate: `<b>${name}</b><br>${plain(column.title)}: %{y:.6g}<br>round %{customdata:.6g}<br>` +
          `${axes[x][1]}: %{x:.5g}<extra></extra>`,
      };
      if (line.y.filter((y) => y !== null).length < 2) Object.assign(curve, { mode: "markers" });
      if (!line.low) return [curve];
      const edge = { ...shared, hoverinfo: "skip", showlegend: false, line: { width: 0 } };
      const band = { ...edge, y: line.low, fill: "tonexty", fillcolor: rgba(colour, 0.18) };
      return [{ ...edge, y: line.high }, band, curve];
    });
  }

  // Where an axis ends: as given, and a logarithmic one above values that are rounding.
  function ends(given, type, values, least) {
    const place = (v) => (type === "log" ? Math.log10(v) : v);
    const usable = (v) => v !== undefined && v !== null && (type !== "log" || v > 0);
    let [low, high] = given || [];
    if (!usable(low) && type === "log" && least) low = least;
    if (!usable(low) && !usable(high)) return {};
    const shown = values.filter(usable).map(place);
    let from = usable(low) ? place(low) : shown.reduce((a, b) => Math.min(a, b), Infinity);
    let to = usable(high) ? place(high) : shown.reduce((a, b) => Math.max(a, b), -Infinity);
    if (!(from < to)) return {};
    const margin = 0.05 * (to - from);
    if (!usable(low)) from -= margin;
    if (!usable(high)) to += margin;
    return { range: [from, to] };
  }

  function chart({ title, columns }) {
    const plot = element("div", { className: "plot" });
    const state = { column: 0, x: "rounds", logX: "linear", logY: columns[0].log ? "log" : "linear" };
    const note = element("p", { className: "note" });
    const every = columns.flatMap((column) => column.lines);
    const offered = Object.keys(axes).filter((key) => every.every((line) => key in line.x));

    function draw() {
      const column = columns[state.column];
      const axis = (type, words) => ({
        type, title: { text: words, standoff: 6 }, gridcolor: "#e8ebef", zerolinecolor: "#cfd5dc",
        automargin: true, exponentformat: "power", ...(type === "log" ? { dtick: undefined } : {}),
      });
      const made = layout({ lines: column.lines.length });
      const values = column.lines.flatMap((line) => line.y).filter((y) => y !== null);
      const reach = column.lines.flatMap((line) => line.high || []).concat(values);
      const across = column.lines.flatMap((line) => line.x[state.x]);
      made.xaxis = {
        ...axis(state.logX, axes[state.x][1]), ...ends(data.xlim[state.x], state.logX, across, 0),
      };
      const up = ends(data.ylim[column.key], state.logY, reach, column.least);
      made.yaxis = { ...axis(state.logY, plain(column.title)), ...up };
      // Another quantity or scale begins with its whole range; hidden curves stay hidden.
      made.xaxis.uirevision = `${state.x} ${state.logX}`;
      made.yaxis.uirevision = `${state.column} ${state.logY}`;
      Plotly.react(plot, traces(column, state.x), made, config);
      const low = values.filter((y) => y <= 0).length, bottom = up.range && 10 ** up.range[0];
      const under = bottom ? values.filter((y) => y > 0 && y < bottom).length : 0;
      const said = state.logY !== "log" ? [] : [
        ...(low ? [`${low} of ${values.length} values are 0 or less, and have no place on this scale.`] : []),
        ...(under ? [`${under} of ${values.length} values lie below the axis.`] : []),
      ];
      note.textContent = said.join(" ");
    }

    const scales = { linear: "linear", log: "log" };
    const logY = buttons(scales, state.logY, (key) => { state.logY = key; draw(); });
    const choice = dropdown("Show", columns.map((c) => short(c.title, 60)), (i) => {
      state.column = i;
      state.logY = columns[i].log ? "log" : "linear";
      logY.press(state.logY);
      draw();
    });
    const x = buttons(
      Object.fromEntries(offered.map((key) => [key, axes[key][0]])), state.x,
      (key) => { state.x = key; draw(); },
    );
    const logX = buttons(scales, state.logX, (key) => { state.logX = key; draw(); });
    const controls = element(
      "div", { className: "controls" }, choice, element("label", {}, "against", x),
      element("label", {}, "across", logX), element("label", {}, "up", logY),
    );
    document.getElementById("charts").append(
      element("section", {}, element("h2", { textContent: title }), controls, plot, note),
    );
    draw();
    narrow.addEventListener("change", draw);
  }

  // --- who took part when: a colour for what became of the questions in a cell ----------------

  const fates = [
    ["used", "#56B4E9"], ["not all used", "#F0C948"], ["dropped", "#D55E00"],
    ["silent", "#7F7F7F"], ["lost its state", "#882255"],
  ];
  const kinds = ["used", "dropped", "silent", "lost"];

  function fate(counts) {
    const [used, dropped, silent, lost] = counts;
    const failed = dropped + silent + lost;
    if (used + failed === 0) return null;
    if (failed === 0) return 0;
    if (used > 0) return 1;
    return dropped >= silent && dropped >= lost ? 2 : silent >= lost ? 3 : 4;
  }

  function map(chosen, plot) {
    const rows = chosen.clients.length, columns = chosen.counts.used[0].length, width = chosen.width;
    const z = [], text = [];
    for (let i = 0; i < rows; i++) {
      const fatesOfRow = [], texts = [];
      for (let j = 0; j < columns; j++) {
        const counts = kinds.map((kind) => chosen.counts[kind][i][j]);
        fatesOfRow.push(fate(counts));
        const rounds = width === 1 ? `round ${j + 1}` : `rounds ${j * width + 1} to ${(j + 1) * width}`;
        const told = kinds.flatMap((kind, k) => (counts[k] ? [`${kind} ${counts[k]}`] : []));
        texts.push(`<b>${plain(chosen.clients[i])}</b><br>${rounds}<br>${told.join(", ") || "not asked"}`);
      }
      z.push(fatesOfRow);
      text.push(texts);
    }
    const steps = fates.flatMap(([, colour], i) => [[i / 5, colour], [(i + 1) / 5, colour]]);
    const x = Array.from({ length: columns }, (_, j) => (j + 0.5) * width + 0.5);
    const few = rows <= 40;
    const made = {
      ...layout({ lines: 1 }), height: Math.max(180, Math.min(560, 90 + 18 * rows)),
      xaxis: { title: { text: "communication round", standoff: 6 }, showgrid: false, zeroline: false },
      yaxis: {
        autorange: "reversed", automargin: true, showgrid: false, zeroline: false, tickmode: "array",
        tickvals: few ? chosen.clients.map((_, i) => i) : [],
        ticktext: few ? chosen.clients.map((name) => plain(short(name, 24))) : [],
        title: few ? undefined : { text: `${rows} rows of clients` },
      },
    };
    plot.style.height = `${made.height}px`;
    Plotly.react(plot, [{
      type: "heatmap", x, y: chosen.clients.map((_, i) => i), z, text, hovertemplate: "%{text}<extra></extra>",
      colorscale: steps, zmin: -0.5, zmax: 4.5, showscale: false, hoverongaps: false,
      xgap: columns <= 120 ? 1 : 0, ygap: rows <= 60 ? 1 : 0,
    }], made, config);
  }

  function maps() {
    const home = document.getElementById("maps");
    if (!data.maps.length) return;
    const plot = element("div", { className: "plot" });
    const key = element("div", { className: "key" });
    for (const [name, colour] of fates) {
      const chip = element("i", { className: "chip" });
      chip.style.background = colour;
      key.append(element("span", {}, chip, ` ${name}`));
    }
    key.append(element("span", { textContent: "blank: not asked" }));
    const names = data.maps.map((one) => short(one.run, 60));
    home.append(
      element("div", { className: "controls" }, dropdown("Run", names, (i) => map(data.maps[i], plot))), key, plot,
    );
    map(data.maps[0], plot);
  }

  data.charts.forEach(chart);
  maps();
})();
