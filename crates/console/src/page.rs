//! Output of HTML pages.

use std::path::Path;

use anyhow::{Context, bail};
use memgauge_report::{NO_FRONT_END, Page, has_front_end};

use crate::{terminal, whole_file};

/// Fails early if this memgauge cannot write pages.
pub fn check() -> anyhow::Result<()> {
    if !has_front_end() {
        bail!("{NO_FRONT_END}");
    }
    Ok(())
}

/// Writes a page and prints its path. `-` is standard output.
pub fn write(page: &Page, path: &Path) -> anyhow::Result<()> {
    let html = page.html().context(NO_FRONT_END)?;
    if path == Path::new("-") {
        return terminal::print(&html);
    }
    let failed = || format!("failed to write `{}`", path.display());
    whole_file::write(path, html.as_bytes()).with_context(failed)?;
    eprintln!("page: {}", path.display());
    Ok(())
}
