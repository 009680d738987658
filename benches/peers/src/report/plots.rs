//! The figures: a row's cost against its size, and the distributions of wake-ups.

use super::tables::{grouped, time};
use crate::results::{Case, Language, Results};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

/// A figure that was drawn.
pub struct Figure {
    pub row: &'static str,
    pub title: String,
    pub file: String,
}

/// A name and its points.
type Curve = (String, Vec<(f64, f64)>);

struct Chart<'a> {
    title: &'a str,
    x: (&'a str, &'a dyn Fn(&f64) -> String),
    curves: Vec<Curve>,
}

const SIZE: (u32, u32) = (960, 500);
/// Of the width.
const LEGEND: u32 = 180;
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 90, 181),
    RGBColor(220, 50, 32),
    RGBColor(230, 159, 0),
    RGBColor(0, 140, 100),
    RGBColor(130, 60, 160),
    RGBColor(90, 180, 230),
    RGBColor(120, 120, 120),
    RGBColor(160, 110, 60),
    RGBColor(210, 100, 170),
    RGBColor(20, 20, 20),
];

pub fn write(results: &Results, directory: &Path) -> Result<Vec<Figure>, String> {
    std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let mut figures = Vec::new();
    for (row, title, of) in [
        ("deliver", "A delivery to sleeping watchers, processor time", "watchers"),
        ("publish", "A publish beside idle watchers, processor time", "watchers"),
        ("list", "A list, processor time", "objects"),
        ("get", "A get, processor time", "objects"),
    ] {
        for language in [Language::Rust, Language::Go] {
            let label = |size: &f64| grouped(size.round() as usize);
            let title = format!("{title}, {language:?}");
            let chart = Chart { title: &title, x: (of, &label), curves: by_size(results, row, language) };
            figures.extend(draw(row, &format!("{row}-{language:?}"), &chart, directory)?);
        }
    }
    for (size, whom) in [(1, "the only watcher"), (1000, "one watcher of 1000")] {
        for language in [Language::Rust, Language::Go] {
            // The part of wake-ups that took longer: 0.5 is the median, 0.01 the 99th percentile.
            let label = |rest: &f64| format!("{rest:.3}");
            let title = format!("Wake-up of {whom}, {language:?}: how long, and which part took longer");
            let curves = waking(results, size, language);
            let chart = Chart { title: &title, x: ("part of all wake-ups that took longer", &label), curves };
            figures.extend(draw("wake", &format!("wake-{size}-{language:?}"), &chart, directory)?);
        }
    }
    Ok(figures)
}

fn by_size(results: &Results, row: &str, language: Language) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for case in results.cases.iter().filter(|case| case.listed.row == row && case.language == language) {
        let point = (case.listed.size as f64, case.figures().median);
        match curves.iter_mut().find(|(name, _)| *name == case.listed.contestant) {
            Some((_, points)) => points.push(point),
            None => curves.push((case.listed.contestant.clone(), vec![point])),
        }
    }
    curves
}

fn waking(results: &Results, size: usize, language: Language) -> Vec<Curve> {
    let of_size = results.cases.iter().filter(|case| case.listed.row == "wake" && case.listed.size == size);
    let curve = |case: &Case| {
        let parts = case.rounds.first().map(|round| round.quantiles.iter().map(|(part, _)| *part));
        let parts = parts.into_iter().flatten().filter(|part| *part < 1.0);
        let points = parts.filter_map(|part| Some((1.0 - part, case.quantile(part)?))).collect();
        (case.listed.contestant.clone(), points)
    };
    of_size.filter(|case| case.language == language).map(curve).collect()
}

/// Draws it, if there is something to draw.
fn draw(row: &'static str, name: &str, chart: &Chart, directory: &Path) -> Result<Option<Figure>, String> {
    if chart.curves.iter().all(|(_, points)| points.is_empty()) {
        return Ok(None);
    }
    let file = format!("{}.svg", name.to_lowercase());
    let path = directory.join(&file);
    let area = SVGBackend::new(&path, SIZE).into_drawing_area();
    lines(&area, chart).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Some(Figure { row, title: chart.title.to_string(), file }))
}

fn lines(area: &DrawingArea<SVGBackend, Shift>, chart: &Chart) -> Result<(), Box<dyn std::error::Error>> {
    area.fill(&WHITE)?;
    let (plot, legend) = area.split_horizontally(SIZE.0 - LEGEND);
    let points = || chart.curves.iter().flat_map(|(_, points)| points.iter());
    let (low, high) = bounds(points().map(|point| point.1));
    let (left, right) = bounds(points().map(|point| point.0));
    let mut context = ChartBuilder::on(&plot)
        .caption(chart.title, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d((left..right).log_scale(), (low / 1.5..high * 1.5).log_scale())?;
    let mesh = &mut context.configure_mesh();
    mesh.x_desc(chart.x.0).x_label_formatter(chart.x.1).y_label_formatter(&|nanos| time(*nanos)).draw()?;
    for (at, (name, points)) in chart.curves.iter().enumerate() {
        // watchcore is what a reader looks for.
        let style = COLOURS[at % COLOURS.len()].stroke_width(if name.starts_with("watchcore") { 3 } else { 1 });
        context.draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?;
        let y = 60 + 22 * at as i32;
        legend.draw(&PathElement::new([(4, y), (24, y)], style))?;
        legend.draw(&Text::new(name.as_str(), (32, y - 7), ("sans-serif", 14)))?;
    }
    area.present()?;
    Ok(())
}

/// The least and the greatest; apart, so that an axis has a length.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (least, most) = values.fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
    if least < most { (least, most) } else { (least / 2.0, least * 2.0) }
}
