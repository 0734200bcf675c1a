{{- define "penstock.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "penstock.labels" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* What the daemon and the plugin read, each as its own user of the bus: the pod is the node. */}}
{{- define "penstock.environment" -}}
{{- $values := .root.Values -}}
- name: PENSTOCK_NODE
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: PENSTOCK_STATE_DIR
  value: /var/lib/penstock
{{- if $values.nats.roles }}
- name: PENSTOCK_NATS_URL_FILE
  value: /etc/penstock-roles/bus.env
{{- else if $values.nats.url }}
- name: PENSTOCK_NATS_URL
  value: {{ $values.nats.url | quote }}
{{- end }}
{{- if $values.nats.secret }}
{{- range $variable, $file := dict "CREDENTIALS" "user.creds" "NKEY" "nkey.seed" "CA" "ca.pem" "CERTIFICATE" "tls.crt" "PRIVATE_KEY" "tls.key" }}
{{- if has $file $values.nats.files }}
- name: PENSTOCK_NATS_{{ $variable }}
  value: /etc/penstock-nats/{{ $file }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Of the files that `penstock bus config` wrote, the one of this pod and this role. */}}
{{- define "penstock.role" -}}
{{- if .root.Values.nats.roles }}
- {name: roles, mountPath: /etc/penstock-roles/bus.env, subPathExpr: $(PENSTOCK_NODE).{{ .role }}.env, readOnly: true}
{{- end }}
{{- end -}}
