package dev.portolan.tests;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;

/** One informer: what it holds, and what it was told. */
final class Soaked {
  private final String name;
  private final String resource;
  private final String namespace;
  private final Map<String, Long> expired = new HashMap<>();
  private List<Map<String, Object>> gone = new ArrayList<>();
  private long lists;
  private Supplier<List<Map<String, Object>>> items = List::of;

  Soaked(String family, String resource, String namespace) {
    this.name = (family + " " + resource + " " + namespace).trim();
    this.resource = resource;
    this.namespace = namespace;
  }

  synchronized void holds(Supplier<List<Map<String, Object>>> items) {
    this.items = items;
  }

  static Map<String, Object> item(String namespace, String name, String uid, String version) {
    return Map.of("key", namespace + "/" + name, "uid", uid, "rv", version);
  }

  synchronized void deleted(String namespace, String name, String uid) {
    gone.add(Map.of("key", namespace + "/" + name, "uid", uid, "at", System.currentTimeMillis()));
  }

  synchronized void listed() {
    lists++;
  }

  synchronized void expired(String message) {
    expired.merge(message, 1L, Long::sum);
  }

  synchronized Map<String, Object> report() {
    List<Map<String, Object>> told = gone;
    gone = new ArrayList<>();
    return Map.of(
        "name", name, "resource", resource, "namespace", namespace, "items", items.get(), "gone", told, "lists", lists,
        "expired", new HashMap<>(expired));
  }
}
