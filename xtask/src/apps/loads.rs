//! Load generators other than wrk: ab and h2load, each against nginx.

use super::{Scenario, http};
use crate::lab::{Lab, Side, each};
use crate::nginx::{Nginx, Workers, own_user};
use crate::{Result, fail};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("ab-nginx", &["nginx", "ab"], ab).extra(),
    Scenario::new("h2load-nginx", &["nginx", "h2load"], h2load).extra(),
];

const LIMIT: Duration = Duration::from_secs(30);

fn with_nginx(lab: &Lab, server: Side, client: Side, load: fn(&Lab, Side, &str) -> Result<()>) -> Result<()> {
    let nginx = Nginx::start(lab, server, &Workers { count: 2, user: &own_user() })?;
    let watch = lab.watch(nginx.port);
    load(lab, client, &nginx.url("64"))?;
    lab.check(watch, server, client)?;
    nginx.process.terminate(Duration::from_secs(5))?.ok()?;
    Ok(())
}

/// A connection for each request, then kept alive.
fn ab(lab: &mut Lab) -> Result<()> {
    each(|server, client| {
        with_nginx(lab, server, client, |lab, client, url| {
            http::ab(lab, client, url, 10_000, false)?;
            http::ab(lab, client, url, 30_000, true)?;
            Ok(())
        })
    })
}

fn h2load(lab: &mut Lab) -> Result<()> {
    each(|server, client| {
        with_nginx(lab, server, client, |lab, client, url| {
            let args = ["--h1", "-n", "30000", "-c", "40", "-t", "2", url];
            let text = lab.run(client, "h2load", &args, LIMIT)?.text();
            if !text.contains("30000 succeeded, 0 failed, 0 errored, 0 timeout") {
                fail!("h2load: {text:?}");
            }
            Ok(())
        })
    })
}
