//! The Compose file: against the types of its specification, and as the pods that it amounts to, which can be run.

use crate::manifests::{Manifests, typed};
use docker_compose_types::{Command, Compose, Environment, Service, Volumes};
use harness::{Result, fail};
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, EnvVar, HostPathVolumeSource, Pod, PodSpec,
    PodTemplateSpec, SecurityContext, Volume, VolumeMount,
};
use serde_json::Value;
use std::path::Path;

/// The monitor's service; the one that copies the library.
const MONITOR: &str = "monitor";
const LIBRARY: &str = "library";
/// The volume in which the monitor's socket is.
const RUN: &str = "run";

/// The file, whose volumes are all declared.
pub(crate) fn read(path: &Path) -> Result<Compose> {
    parse(&std::fs::read_to_string(path)?).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn parse(text: &str) -> Result<Compose> {
    let mut yaml: serde_norway::Value = serde_norway::from_str(text)?;
    yaml.apply_merge()?;
    let document: Value = serde_json::to_value(yaml)?;
    let compose: Compose = typed(&document)?;
    for (name, service) in &compose.services.0 {
        for (volume, ..) in service.iter().flat_map(mounts) {
            if !compose.volumes.0.contains_key(&volume) {
                fail!("{name}: there is no volume {volume}");
            }
        }
    }
    Ok(compose)
}

/// What the services amount to: the monitor's pod, and one of all that share a network. `starts` is what the image does by itself.
pub(crate) fn as_pods(compose: &Compose, starts: &[String]) -> Result<Manifests> {
    let (mut monitor, mut programs) = (PodSpec::default(), PodSpec::default());
    for (name, service) in &compose.services.0 {
        let Some(service) = service else { fail!("{name}: says nothing") };
        let spec = if name == MONITOR { &mut monitor } else { &mut programs };
        spec.host_pid = spec.host_pid.or((service.pid.as_deref() == Some("host")).then_some(true));
        let container = container(name, service, starts)?;
        match name.as_str() {
            LIBRARY => spec.init_containers.get_or_insert_default().push(container),
            _ => spec.containers.push(container),
        }
    }
    check_network(compose, &programs)?;
    for spec in [&mut monitor, &mut programs] {
        spec.volumes = Some(compose.volumes.0.keys().map(|name| volume(name)).collect());
    }
    let template = PodTemplateSpec { spec: Some(monitor), ..PodTemplateSpec::default() };
    let set = DaemonSetSpec { template, ..DaemonSetSpec::default() };
    Ok(Manifests {
        configs: Vec::new(),
        monitors: vec![DaemonSet { spec: Some(set), ..DaemonSet::default() }],
        pods: vec![Pod { spec: Some(programs), ..Pod::default() }],
    })
}

/// One of the programs has a network, and the others are in it.
fn check_network(compose: &Compose, programs: &PodSpec) -> Result<()> {
    let mode = |name: &String| compose.services.0.get(name)?.as_ref()?.network_mode.as_deref();
    let names = || programs.containers.iter().map(|container| &container.name);
    let owners: Vec<&String> = names().filter(|name| mode(name).is_none()).collect();
    let [owner] = owners.as_slice() else { fail!("{owners:?} have a network each") };
    let theirs = format!("service:{owner}");
    match names().find(|name| name != owner && mode(name) != Some(&theirs)) {
        Some(other) => fail!("{other} is not in the network of {owner}"),
        None => Ok(()),
    }
}

fn container(name: &str, service: &Service, starts: &[String]) -> Result<Container> {
    let command = match &service.command {
        Some(Command::Args(words)) => words.clone(),
        Some(Command::Simple(line)) => fail!("{name}: {line}: a command is a list here"),
        None => starts.to_vec(),
    };
    let variables: Vec<(String, Option<String>)> = match &service.environment {
        Environment::List(list) => list.iter().map(|text| pair(text)).collect(),
        Environment::KvPair(pairs) => pairs
            .iter()
            .map(|(name, value)| (name.clone(), value.as_ref().map(ToString::to_string)))
            .collect(),
    };
    let variables = variables.into_iter().map(|(name, value)| EnvVar { name, value, ..EnvVar::default() });
    let mounts = mounts(service).map(|(name, mount_path, is_read_only)| VolumeMount {
        name,
        mount_path,
        read_only: Some(is_read_only),
        ..VolumeMount::default()
    });
    let rights = Capabilities { add: Some(service.cap_add.clone()), drop: Some(service.cap_drop.clone()) };
    let security = SecurityContext {
        capabilities: Some(rights),
        read_only_root_filesystem: Some(service.read_only),
        ..SecurityContext::default()
    };
    Ok(Container {
        name: name.to_owned(),
        command: Some(command),
        env: Some(variables.collect()),
        volume_mounts: Some(mounts.collect()),
        security_context: Some(security),
        ..Container::default()
    })
}

fn pair(text: &str) -> (String, Option<String>) {
    match text.split_once('=') {
        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
        None => (text.to_owned(), None),
    }
}

/// A service's volumes, where they are, and whether only to be read. Directories of the host are not used.
fn mounts(service: &Service) -> impl Iterator<Item = (String, String, bool)> {
    let simple = |volume: &Volumes| match volume {
        Volumes::Simple(text) => text.clone(),
        Volumes::Advanced(_) => String::new(),
    };
    service.volumes.iter().map(simple).map(|text| {
        let mut parts = text.split(':').map(str::to_owned);
        let (name, place) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        (name, place, parts.next().is_some_and(|how| how == "ro"))
    })
}

/// That of the socket is one for all.
fn volume(name: &str) -> Volume {
    let shared =
        HostPathVolumeSource { path: "/run/socksdirect".to_owned(), ..HostPathVolumeSource::default() };
    let own = EmptyDirVolumeSource::default();
    Volume {
        name: name.to_owned(),
        host_path: (name == RUN).then_some(shared),
        empty_dir: (name != RUN).then_some(own),
        ..Volume::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "
services:
  monitor: {image: i, pid: host, cap_add: [KILL], volumes: ['run:/run/socksdirect']}
  redis: {image: r, command: [redis-server], environment: {A: b}, volumes: ['run:/run/socksdirect:ro']}
volumes: {run: {}}
";

    #[test]
    fn what_the_specification_does_not_know_is_refused() {
        assert!(parse(SOUND).is_ok());
        for (from, to) in
            [("cap_add", "caps"), ("pid: host", "pid: [host]"), ("volumes: {run", "volume: {run")]
        {
            assert!(parse(&SOUND.replacen(from, to, 1)).is_err(), "{from} as {to}");
        }
        let error = parse(&SOUND.replace("{run: {}}", "{other: {}}")).unwrap_err().to_string();
        assert_eq!(error, "monitor: there is no volume run");
    }

    #[test]
    fn services_become_pods() {
        let pods = as_pods(&parse(SOUND).unwrap(), &["sd".to_owned()]).unwrap();
        let (monitor, programs) = (pods.monitor().unwrap(), pods.pod().unwrap());
        assert_eq!((monitor.host_pid, programs.host_pid), (Some(true), None));
        assert_eq!(monitor.containers[0].command, Some(vec!["sd".to_owned()]));
        let redis = &programs.containers[0];
        assert_eq!(redis.env.as_ref().unwrap()[0].value.as_deref(), Some("b"));
        let mount = &redis.volume_mounts.as_ref().unwrap()[0];
        assert_eq!((mount.mount_path.as_str(), mount.read_only), ("/run/socksdirect", Some(true)));
    }
}
