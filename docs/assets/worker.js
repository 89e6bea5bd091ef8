// Browsers start no worker from file://. There the search runs in a hidden frame that behaves like one.
if (location.protocol === "file:")
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      this.inner = this.frame.contentWindow;
      this.inner.postMessage = (data) => setTimeout(() => this.onmessage?.({ data })); // never during another message
      const script = this.inner.document.createElement("script");
      this.loaded = new Promise((resolve) => (script.onload = resolve));
      script.onerror = (event) => this.onerror?.(event);
      script.src = new URL(url, document.baseURI);
      this.inner.document.head.append(script);
    }
    postMessage(data) {
      this.loaded.then(() => this.inner.onmessage?.({ data }));
    }
    terminate() {
      this.frame.remove();
    }
  };
