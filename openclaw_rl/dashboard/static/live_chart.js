// A chart of figures over time. The server sends the whole once, then one point a second; the oldest go as new ones
// come, so that neither the browser's memory nor the traffic grows. Colours are the page's variables.
import { echarts } from "nicegui-echart";

const UNITS = {
  ms: (v) => (v >= 10000 ? (v / 1000).toFixed(1) + " s" : v >= 999.5 ? (v / 1000).toFixed(2) + " s" : Math.round(v) + " ms"),
  count: (v) => String(Math.round(v * 10) / 10),
  "": (v) => (v === 0 ? "0" : Math.abs(v) >= 1000 || Math.abs(v) < 0.001 ? v.toExponential(1) : String(+v.toPrecision(3))),
};

export default {
  template: '<div class="d-chart" role="img"></div>',
  props: { spec: Object, times: Array, values: Array },
  mounted() {
    this.t = [...this.times];
    this.v = this.values.map((row) => [...row]);
    this.shown = this.spec;
    this.chart = echarts.init(this.$el, null, { renderer: "canvas" });
    this.sizes = new ResizeObserver(() => this.chart.resize());
    this.sizes.observe(this.$el);
    this.themes = new MutationObserver(() => this.draw(true));
    this.themes.observe(document.body, { attributes: true, attributeFilter: ["class"] });
    this.draw(true);
  },
  beforeUnmount() {
    this.sizes.disconnect();
    this.themes.disconnect();
    this.chart.dispose();
  },
  methods: {
    whole(spec, times, values) {
      this.shown = spec;
      this.t = times;
      this.v = values;
      this.draw(true);
    },
    point(time, values) {
      const step = this.shown.step;
      let last = this.t[this.t.length - 1];
      if (last !== undefined && time < last) return;
      while (last !== undefined && last + step <= time && this.t.length && last < time) {
        last += step;
        this.t.push(last);
        this.v.forEach((row) => row.push(null));
      }
      this.v.forEach((row, i) => (row[row.length - 1] = values[i]));
      while (this.t.length > this.shown.points) {
        this.t.shift();
        this.v.forEach((row) => row.shift());
      }
      if (!document.hidden) this.draw(false);
    },
    data(i) {
      return this.t.map((time, k) => [(time + this.shown.offset) * 1000, this.v[i][k]]);
    },
    draw(all) {
      const spec = this.shown;
      const at = (time) => (time + spec.offset) * 1000; // the server's time of day, whatever the reader's zone
      const window_ = { min: at(this.t[0]), max: at(this.t[this.t.length - 1] || 0) };
      if (!all) {
        this.chart.setOption({ xAxis: window_, series: spec.series.map((_, i) => ({ data: this.data(i) })) }, { lazyUpdate: true });
        return;
      }
      const css = getComputedStyle(document.body);
      const colour = (name) => css.getPropertyValue(name).trim();
      const ink = colour("--ink"), muted = colour("--muted"), line = colour("--line"), font = css.fontFamily;
      const say = UNITS[spec.unit] || ((v) => UNITS[""](v) + " " + spec.unit);
      this.chart.setOption(
        {
          animation: false,
          useUTC: true,
          textStyle: { fontFamily: font },
          grid: { left: 8, right: 14, top: 12, bottom: spec.series.length > 1 ? 30 : 6, containLabel: true },
          legend: { show: spec.series.length > 1, bottom: 0, left: "center", icon: "roundRect", itemWidth: 12, itemHeight: 8, itemGap: 14, type: "scroll", textStyle: { color: muted, fontSize: 12 }, pageIconColor: muted, pageTextStyle: { color: muted } },
          tooltip: { trigger: "axis", confine: true, backgroundColor: colour("--card"), borderColor: line, textStyle: { color: ink, fontSize: 13, fontFamily: font }, valueFormatter: (v) => (v === null || v === undefined ? "–" : say(v)), axisPointer: { lineStyle: { color: muted } } },
          xAxis: { type: "time", ...window_, axisLine: { lineStyle: { color: line } }, axisTick: { show: false }, axisLabel: { color: muted, hideOverlap: true, fontSize: 11, formatter: { year: "{yyyy}", month: "{MM}-{dd}", day: "{MM}-{dd}", hour: "{HH}:{mm}", minute: "{HH}:{mm}", second: "{HH}:{mm}:{ss}", none: "{HH}:{mm}" } }, splitLine: { show: false } },
          yAxis: { type: "value", scale: !!spec.free, min: spec.free ? null : 0, minInterval: spec.whole ? 1 : 0, splitNumber: 3, axisLabel: { color: muted, fontSize: 11, formatter: say }, splitLine: { lineStyle: { color: line } } },
          series: spec.series.map((one, i) => ({
            name: one.label, type: "line", data: this.data(i), showSymbol: false, connectNulls: false, sampling: "none",
            step: spec.steps ? "end" : false, stack: spec.stacked ? "all" : null, color: colour(one.colour),
            lineStyle: { width: spec.stacked ? 0 : 1.8, type: one.dashed ? [5, 4] : "solid" },
            areaStyle: spec.stacked ? { opacity: 0.85 } : spec.series.length === 1 ? { opacity: 0.12 } : null,
            emphasis: { disabled: true },
          })),
        },
        { notMerge: true },
      );
    },
  },
};
