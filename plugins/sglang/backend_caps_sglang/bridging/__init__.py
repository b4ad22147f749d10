"""What the bridge is made of that needs nothing of SGLang: views, reasons and errors."""
