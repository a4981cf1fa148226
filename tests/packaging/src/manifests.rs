//! Kubernetes manifests against the types of their specification.
//!
//! The types come from the published API (k8s-openapi). What such a type does not
//! know it drops silently. So a document is read into its type and written again: whatever has got lost is a mistake.

use docker_compose_types::Compose;
use harness::{Result, fail};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, PodSpec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// What `packaging/kubernetes` has.
#[derive(Default)]
pub(crate) struct Manifests {
    pub(crate) configs: Vec<ConfigMap>,
    pub(crate) monitors: Vec<DaemonSet>,
    pub(crate) pods: Vec<Pod>,
}

impl Manifests {
    /// All documents, each of a kind that is known here.
    pub(crate) fn read(folder: &Path) -> Result<Manifests> {
        let mut manifests = Manifests::default();
        for file in ["monitor.yaml", "pod.yaml"] {
            let path = folder.join(file);
            let text = std::fs::read_to_string(&path)?;
            for document in serde_norway::Deserializer::from_str(&text) {
                let document = Value::deserialize(document)?;
                manifests.add(&document).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
        Ok(manifests)
    }

    fn add(&mut self, document: &Value) -> Result<()> {
        match (document["apiVersion"].as_str(), document["kind"].as_str()) {
            (Some("v1"), Some("Namespace")) => _ = typed::<Namespace>(document)?,
            (Some("v1"), Some("ConfigMap")) => self.configs.push(typed(document)?),
            (Some("v1"), Some("Pod")) => self.pods.push(typed(document)?),
            (Some("apps/v1"), Some("DaemonSet")) => self.monitors.push(typed(document)?),
            (version, kind) => fail!("{version:?} {kind:?}: nobody checks this kind"),
        }
        Ok(())
    }

    /// The specification of the monitor's pod.
    pub(crate) fn monitor(&self) -> Result<&PodSpec> {
        let spec = self.monitors.first().and_then(|set| set.spec.as_ref()?.template.spec.as_ref());
        spec.ok_or_else(|| "there is no DaemonSet with a pod".into())
    }

    /// The specification of the pod of programs.
    pub(crate) fn pod(&self) -> Result<&PodSpec> {
        let spec = self.pods.first().and_then(|pod| pod.spec.as_ref());
        spec.ok_or_else(|| "there is no Pod".into())
    }
}

/// Each volume that a pod mounts must be one of its volumes.
pub(crate) fn check_volumes(spec: &PodSpec) -> Result<()> {
    let volumes: BTreeSet<&str> = spec.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    for container in containers {
        for mount in container.volume_mounts.iter().flatten() {
            if !volumes.contains(mount.name.as_str()) {
                fail!("{}: there is no volume {}", container.name, mount.name);
            }
        }
    }
    Ok(())
}

/// The monitor has the rights that its unit has, and no other.
pub(crate) fn check_rights(spec: &PodSpec, compose: &Compose, unit: &str) -> Result<()> {
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let unit: BTreeSet<String> =
        line.unwrap_or_default().split_whitespace().map(|name| name.replace("CAP_", "")).collect();
    let container = spec.containers.first();
    let added = container.and_then(|c| c.security_context.as_ref()?.capabilities.as_ref()?.add.clone());
    let kubernetes: BTreeSet<String> = added.unwrap_or_default().into_iter().collect();
    let service = compose.services.0.get("monitor").and_then(Option::as_ref);
    let added = service.map(|service| service.cap_add.clone()).unwrap_or_default();
    let compose: BTreeSet<String> = added.into_iter().collect();
    if unit.is_empty() || kubernetes != unit || compose != unit {
        fail!("rights of the monitor differ: unit {unit:?}, Kubernetes {kubernetes:?}, Compose {compose:?}");
    }
    Ok(())
}

/// A document as its type, which must know all of it.
pub(crate) fn typed<T: Serialize + DeserializeOwned>(document: &Value) -> Result<T> {
    let typed: T = serde_json::from_value(document.clone())?;
    let again = serde_json::to_value(&typed)?;
    match lost(document, &again, "") {
        Some(field) => fail!("{field} is no field of this kind"),
        None => Ok(typed),
    }
}

/// The first field of `before` that `after` does not have.
fn lost(before: &Value, after: &Value, place: &str) -> Option<String> {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => before.iter().find_map(|(name, value)| {
            let place = format!("{place}.{name}");
            match after.get(name) {
                Some(after) => lost(value, after, &place),
                // Written or not, it says nothing.
                None if value.is_null() || value.as_object().is_some_and(|it| it.is_empty()) => None,
                None => Some(place),
            }
        }),
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            let pairs = before.iter().zip(after).enumerate();
            pairs.into_iter().find_map(|(i, (before, after))| lost(before, after, &format!("{place}[{i}]")))
        }
        (Value::Array(_), Value::Array(_)) => Some(place.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(text: &str) -> Result<Pod> {
        typed(&serde_norway::from_str::<Value>(text)?)
    }

    #[test]
    fn what_no_type_knows_is_found() {
        let sound = "{apiVersion: v1, kind: Pod, spec: {hostPID: true, containers: [{name: a, image: b}]}}";
        assert!(pod(sound).is_ok());
        let error = |from: &str, to: &str| pod(&sound.replace(from, to)).unwrap_err().to_string();
        assert_eq!(error("hostPID", "hostPid"), ".spec.hostPid is no field of this kind");
        assert_eq!(error("image", "imag"), ".spec.containers[0].imag is no field of this kind");
        assert!(error("hostPID: true", "hostPID: [a]").contains("invalid type"), "another type");
    }

    #[test]
    fn volumes_must_be_there() {
        let text = "{apiVersion: v1, kind: Pod, spec: {containers: [{name: a, volumeMounts: [{name: v, mountPath: /v}]}]}}";
        let spec = pod(text).unwrap().spec.unwrap();
        assert_eq!(check_volumes(&spec).unwrap_err().to_string(), "a: there is no volume v");
    }
}
