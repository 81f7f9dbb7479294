'use strict';
/* asv's legend repeats, for every curve, each setting that differs anywhere between machines. A curve is told by what sets
   it apart from the others drawn: what all share is left out, and what follows from the machine's name; one without a value
   has no name. asv's switches and sortable columns answer to a pointer alone; here they can be reached and pressed by
   keyboard too. */
(function () {
  var PRESSED = 'a.btn:not([href]), th[data-sort]';
  var plot = $.plot;

  function shorten(labels) {
    var parts = labels.map(function (label) { return label.split('; '); });
    var name = function (part) { return part.split('-', 1)[0]; };
    var machine = function (list) { return list.filter(function (part) { return name(part) === 'machine'; })[0]; };
    // Values of a setting among the curves, by machine or ('') among all.
    var seen = {};
    parts.forEach(function (list) {
      list.forEach(function (part) {
        ['', machine(list)].forEach(function (where) {
          var key = where + ' ' + name(part);
          (seen[key] = seen[key] || {})[part] = true;
        });
      });
    });
    var varies = function (where, part) { return Object.keys(seen[where + ' ' + name(part)]).length > 1; };
    var short = parts.map(function (list) {
      return list.filter(function (part) {
        return varies('', part) && (name(part) === 'machine' || varies(machine(list), part));
      });
    });
    return short.map(function (list, index) {
      var values = list.length === 1 ? [list[0].slice(name(list[0]).length + 1)] : list;
      return values.join('; ') || labels[index];
    });
  }

  $.plot = function (place, data, options) {
    var shown = options && options.legend && options.legend.show;
    var drawn = data.filter(function (series) {
      return series.data.some(function (point) { return point && typeof point[1] === 'number' && isFinite(point[1]); });
    });
    if (shown && drawn.length > 1) {
      var labels = shorten(drawn.map(function (series) { return series.label || ''; }));
      data = data.map(function (series) {  // without a name it is not in the legend
        var index = drawn.indexOf(series);
        return $.extend({}, series, { label: index < 0 ? null : labels[index] });
      });
      // In rows across the plot: a column would hide more of the curves.
      var widest = Math.max.apply(null, labels.map(function (label) { return label.length; })) * 7 + 40;
      var columns = Math.max(1, Math.min(labels.length, Math.floor((place.width() - 60) / widest)));
      options = $.extend(true, {}, options, { legend: { noColumns: columns } });
    }
    return plot.call($, place, data, options);
  };
  $.extend($.plot, plot);

  new MutationObserver(function () {
    $(PRESSED).not('[tabindex]').attr('tabindex', 0);
  }).observe(document.documentElement, { childList: true, subtree: true });
  document.addEventListener('keydown', function (event) {
    if ((event.key === 'Enter' || event.key === ' ') && event.target.matches(PRESSED)) {
      event.preventDefault();
      event.target.click();
    }
  });
})();
